"""Scripts: the tool calls that a scenario makes the model give in its first turns."""

from typing import Self

from pydantic import Field, JsonValue, model_validator
from pydantic_core import PydanticCustomError

from polar_mitm.harnesses.actions import Action, EditFile, ListFolder, ReadFile, Shell, WriteFile
from polar_mitm.tasks.fields import Part, Text


class Write(Part):
    """A file to be made. The path is relative to the workspace."""

    path: Text
    text: str


class Edit(Part):
    """A change to a file: `old`, which it holds once, becomes `new`."""

    path: Text
    old: Text
    new: str


class Step(Part):
    """One scripted turn: an action, put into the harness's own tool for it, or a tool and its arguments."""

    shell: Text | None = None
    """A command."""
    list: Text | None = None
    """A folder."""
    read: Text | None = None
    """A file."""
    write: Write | None = None
    edit: Edit | None = None
    agent: "SubAgent | None" = None
    """A sub-agent is started."""
    tool: Text | None = None
    arguments: dict[str, JsonValue] = Field(default_factory=dict)

    @property
    def action(self) -> Action | None:
        """What it does; None where it names a tool or starts a sub-agent."""
        match self:
            case Step(shell=str(command)):
                return Shell(command)
            case Step(list=str(path)):
                return ListFolder(path)
            case Step(read=str(path)):
                return ReadFile(path)
            case Step(write=Write(path=path, text=text)):
                return WriteFile(path, text)
            case Step(edit=Edit(path=path, old=old, new=new)):
                return EditFile(path, old, new)
        return None

    @model_validator(mode="after")
    def _one_of_all(self) -> Self:
        given = [name for name in type(self).model_fields if name != "arguments" and getattr(self, name) is not None]
        if len(given) != 1 or (self.arguments and given != ["tool"]):
            raise PydanticCustomError(
                "step", "expected one of shell, list, read, write, edit, agent, or `tool: NAME` with `arguments`"
            )
        return self


class SubAgent(Part):
    """A sub-agent that the model is made to start, and the tool calls of its first turns."""

    prompt: Text
    script: list[Step] = Field(default_factory=list)


Step.model_rebuild()  # now that there are sub-agents
