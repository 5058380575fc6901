"""Two towers brought into one space by images, frames and their captions."""
