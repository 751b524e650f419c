"""What people paste: the launch commands and flags of other frameworks, read as a job."""
