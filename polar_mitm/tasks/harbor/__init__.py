"""Harbor task folders: `task.toml`, `instruction.md`, `environment/`, `tests/`, `solution/`, taken as they are.

What a folder means is what harbor 0.26 makes of it; docs/tasks.md says where polar differs. `config` reads task.toml,
`folder` the rest, `fits` says what polar cannot give, `work` makes scenarios of folders.
"""
