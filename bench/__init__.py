"""Measurements that take too long, or say too little about right and wrong, to be tests."""
