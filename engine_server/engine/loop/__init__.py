"""Parts of the asynchronous engine that live on its event loop."""
