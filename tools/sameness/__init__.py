"""What `same_results` records: cases, how they are run, how two recordings differ, and the sample that tests hold."""
