"""A cluster on a site as it is used from here: its agent here, its desk and its job there."""
