"""Every field that the official Google SDK can put into a body of generateContent or countTokens.

The SDK's own types are not what it sends: functions turn a config into proto JSON. So the names are read out of the
code of those functions, and out of the types where these go onto the wire as they are.
"""

import ast
import inspect
from collections.abc import Callable, Iterator
from typing import Any

from google.genai import models, types
from pydantic import BaseModel

# Functions that write the fields of a body, of `generationConfig` and of other objects.
BODY = (
    models._GenerateContentParameters_to_mldev,
    models._GenerateContentParameters_to_vertex,
    models._CountTokensParameters_to_mldev,
    models._CountTokensParameters_to_vertex,
)
CONFIG = (models._GenerateContentConfig_to_mldev, models._GenerateContentConfig_to_vertex)
COUNT_CONFIG = (models._CountTokensConfig_to_vertex,)
TOOL = (models._Tool_to_mldev, models._Tool_to_vertex)
GENERATION_CONFIG = (models._GenerationConfig_to_vertex,)

OBJECTS: dict[str, type[BaseModel]] = {
    "contents.*": types.Content,
    "contents.*.parts.*": types.Part,
    "contents.*.parts.*.inlineData": types.Blob,
    "contents.*.parts.*.functionCall": types.FunctionCall,
    "contents.*.parts.*.functionResponse": types.FunctionResponse,
    "systemInstruction": types.Content,
    "tools.*": types.Tool,
    "tools.*.functionDeclarations.*": types.FunctionDeclaration,
    "toolConfig": types.ToolConfig,
    "toolConfig.functionCallingConfig": types.FunctionCallingConfig,
    "generationConfig": types.GenerationConfig,
    "generationConfig.thinkingConfig": types.ThinkingConfig,
}

# A name of the type that goes onto the wire as another.
RENAMED = {"generationConfig.modelSelectionConfig": "generationConfig.modelConfig"}

HARNESS_ONLY = {
    "model": "Gemini CLI with a Google login; the SDK names the model in the path",
    "request": "Gemini CLI with a Google login",
    "project": "Gemini CLI with a Google login",
    "userPromptId": "Gemini CLI with a Google login",
    "sessionId": "Gemini CLI with a Google login",
    "enabledCreditTypes": "Gemini CLI with a Google login",
    "generationConfig._responseJsonSchema": "Gemini CLI on an older JavaScript SDK",
}


def fields() -> set[str]:
    found = {name for target, name in _written(BODY) if target == "to_object" and name != "_url"}
    for target, name in _written((*CONFIG, *COUNT_CONFIG)):
        found.add(name if target == "parent_object" else f"generationConfig.{name}")
    found |= {f"tools.*.{name}" for _, name in _written(TOOL)}
    found |= {f"generationConfig.{name}" for _, name in _written(GENERATION_CONFIG)}
    for path, kind in OBJECTS.items():
        found |= {f"{path}.{field.alias or name}" for name, field in kind.model_fields.items()}
    return {RENAMED.get(name, name) for name in found}


def _written(functions: tuple[Callable[..., Any], ...]) -> Iterator[tuple[str, str]]:
    """What the functions' calls of `setv(object, ['name', ...], value)` write: the object, and the first name."""
    for function in functions:
        for node in ast.walk(ast.parse(inspect.getsource(function))):
            match node:
                case ast.Call(func=ast.Name(id="setv"), args=[ast.Name(id=target), ast.List(elts=[first, *_]), *_]):
                    yield target, ast.literal_eval(first)
