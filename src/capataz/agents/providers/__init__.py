"""Providers: what the wire formats of model providers mean, and the clients that speak them."""
