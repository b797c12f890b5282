"""Runtimes make boxes. A box is an isolated place with a warden inside; everything that happens in
it goes through the warden."""
