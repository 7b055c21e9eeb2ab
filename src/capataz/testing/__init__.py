"""For tests of programs and of Capataz itself: scripted models and providers, fakes, conformance suites."""
