"""The web page's files as `make page` builds them from `web/` into `built`."""
