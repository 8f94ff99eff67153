"""What a rank reports: output, spans and samples as events, in its spool first, then on the wire.

The rank writes here, and the supervisor reads the spool where events are missing or the rank has
died. Imports the standard library and the room record.
"""
