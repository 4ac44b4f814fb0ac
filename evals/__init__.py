"""Measurement: the demo now, replays, speed and audits to come. Imports lookup and integration."""
