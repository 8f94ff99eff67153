"""What a rank reports: output, spans and samples as events, first in its spool, then on the wire.

The rank writes the spool; the supervisor reads it where events are missing or the rank has died.
Imports the standard library and the package record.
"""
