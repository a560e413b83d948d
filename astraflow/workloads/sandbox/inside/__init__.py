"""What runs inside the sandbox, beside the submission: the standard library only, and no import from outside.

The folder is mounted into the sandbox by itself. ``warden`` takes orders from the host; ``child`` is the process that
plays one case and never returns from it; ``seccomp`` and ``landlock`` are the walls the child puts up around itself;
``values`` and ``frames`` are what both sides of the pipe speak.
"""
