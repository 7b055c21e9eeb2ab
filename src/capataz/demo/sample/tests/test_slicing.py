import unittest

from pages.slicing import page, page_count


class PageCount(unittest.TestCase):
    def test_exact_fit_has_no_empty_page(self):
        self.assertEqual(page_count(range(8), 4), 2)

    def test_short_last_page_counts(self):
        self.assertEqual(page_count(range(10), 4), 3)

    def test_size_must_be_positive(self):
        with self.assertRaises(ValueError):
            page_count(range(3), 0)


class Page(unittest.TestCase):
    def test_first_page(self):
        self.assertEqual(page(range(10), 1, 4), [0, 1, 2, 3])

    def test_short_last_page(self):
        self.assertEqual(page(range(10), 3, 4), [8, 9])

    def test_no_such_page(self):
        with self.assertRaises(IndexError):
            page(range(8), 3, 4)


if __name__ == "__main__":
    unittest.main()
