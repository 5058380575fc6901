"""Any model of open_clip that has no native towers here, through the package open_clip itself."""
