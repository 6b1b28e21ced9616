"""Private foundations: the only private modules that other packages import."""
