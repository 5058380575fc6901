"""Index folders of videos: find, decode and encode files, and commit clips to a store."""
