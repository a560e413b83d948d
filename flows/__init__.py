"""The Prefect flows: thin, one a file, each flow run an OS process of its own."""
