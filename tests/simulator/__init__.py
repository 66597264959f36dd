"""What only simulated devices do or show; a folder for each subject."""
