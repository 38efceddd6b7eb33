"""Views over topics: kernels that keep a query's result up to date (docs/views.md)."""
