"""Looking at trees."""
