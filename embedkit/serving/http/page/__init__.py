"""The server's page at ``/``: plain HTML, CSS and JavaScript without external resources."""
