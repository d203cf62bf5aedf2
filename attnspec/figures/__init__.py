"""Figure plug-ins: one file each; a file draws any number of pictures from the cases of one or more runs.

A plug-in has `drawings(cases) -> list[Drawing]`: pure, and quick, since each picture is drawn only when asked for.
"""
