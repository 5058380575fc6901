"""Subtitles, recognised speech, on-screen text and descriptions of videos."""
