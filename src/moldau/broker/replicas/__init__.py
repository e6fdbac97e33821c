"""The partitions that this broker hosts: serving, following, waiting for more, disks."""
