"""A training job: model, degrees, batch, precision and framework; how it is read and what is decided for it."""
