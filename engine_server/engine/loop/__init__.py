"""Parts of the asynchronous engine that run on its event loop."""
