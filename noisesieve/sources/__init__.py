"""Room 1, INDEX: path → Index. A new container is one file here and one line in containers.py."""
