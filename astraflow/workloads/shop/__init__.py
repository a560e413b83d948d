"""A small shop after WebShop: its actions, its pages and its reward, on a catalogue that is made up by a seed."""
