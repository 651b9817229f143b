"""One file per command: what each command does. The only place where rooms meet. Read scan.py first.

Modules that begin with an underscore are parts of commands.
"""
