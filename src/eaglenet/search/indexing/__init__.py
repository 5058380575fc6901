"""From folders of videos to rows of a store."""
