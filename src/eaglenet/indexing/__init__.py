"""From folders of videos to clips in a store."""
