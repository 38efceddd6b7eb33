"""A cluster made of what its bucket holds, when the disks of all its nodes are gone."""
