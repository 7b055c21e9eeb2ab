"""Pages of a sequence, numbered from 1."""


def page_count(items, size):
    """How many pages of `size` items there are."""
    if size < 1:
        raise ValueError("size must be at least 1")
    return len(items) // size


def page(items, number, size):
    """The items of one page. Raises IndexError for a page that does not exist."""
    if not 1 <= number <= page_count(items, size):
        raise IndexError(f"there is no page {number}")
    start = (number - 1) * size
    return list(items[start : start + size])
