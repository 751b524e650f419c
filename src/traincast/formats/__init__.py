"""READ and write the field's files, one format per module or folder."""
