"""The files of the web page, which `make page` builds from `web/` into `built`."""
