"""What is asked and answered, as records: all that the server knows of an endpoint, and the description of them."""
