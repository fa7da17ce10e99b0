"""Who gives its blocks back when there are none left."""
