"""What becomes of each field of a Google generateContent request, by its name in proto JSON.

`*` stands for a position in a list. An object that is ignored or refused as a whole has no rows for its parts.
"""

from collections.abc import Mapping, Sequence

from polar_mitm.providers.base import Fate
from polar_mitm.providers.common import BUDGET, SEED, Notes, settle
from polar_mitm.providers.fields import Fields

CARRIED = Fate("carried")
TEMPLATE = Fate("emulated", "asked of the chat template")
SERVERS_TOOL = Fate("ignored", "a tool of Google's servers: nothing here runs it")
TEXT_ONLY = Fate("ignored", "the model answers in text")
AS_SENT = Fate("ignored", "media reach the engine as they were sent")
ON_THIS_MACHINE = Fate("ignored", "every call is served by the one engine on this machine")
NOT_MODERATED = Fate("ignored", "nothing here judges a prompt or an answer")
NOT_STREAMED = Fate("ignored", "calls and their results are whole")
ON_THE_RECORD = Fate("ignored", "log-probabilities go onto the call's record, not into the reply")
SESSION = Fate("emulated", "kept on the record; the model is not told")

FATES: Mapping[str, Fate] = {
    "model": Fate("emulated", "the served model answers; the name comes back in the reply"),
    "contents": CARRIED,
    "contents.*.role": CARRIED,
    "contents.*.parts": CARRIED,
    "contents.*.parts.*.text": CARRIED,
    "contents.*.parts.*.thought": CARRIED,
    "contents.*.parts.*.thoughtSignature": Fate("emulated", "accepted unread, in every form"),
    "contents.*.parts.*.inlineData": Fate("carried", "images; other media leave a placeholder and a note"),
    "contents.*.parts.*.inlineData.data": CARRIED,
    "contents.*.parts.*.inlineData.mimeType": CARRIED,
    "contents.*.parts.*.inlineData.displayName": Fate("ignored", "chat templates have no place for a file's name"),
    "contents.*.parts.*.fileData": Fate("ignored", "nothing is fetched from the network; a placeholder stands for it"),
    "contents.*.parts.*.functionCall": CARRIED,
    "contents.*.parts.*.functionCall.id": CARRIED,
    "contents.*.parts.*.functionCall.name": CARRIED,
    "contents.*.parts.*.functionCall.args": CARRIED,
    "contents.*.parts.*.functionCall.partialArgs": NOT_STREAMED,
    "contents.*.parts.*.functionCall.willContinue": NOT_STREAMED,
    "contents.*.parts.*.functionResponse": CARRIED,
    "contents.*.parts.*.functionResponse.id": CARRIED,
    "contents.*.parts.*.functionResponse.name": Fate("emulated", "pairs a result without an id with its call"),
    "contents.*.parts.*.functionResponse.response": CARRIED,
    "contents.*.parts.*.functionResponse.parts": CARRIED,
    "contents.*.parts.*.functionResponse.willContinue": NOT_STREAMED,
    "contents.*.parts.*.functionResponse.scheduling": NOT_STREAMED,
    "contents.*.parts.*.executableCode": SERVERS_TOOL,
    "contents.*.parts.*.codeExecutionResult": SERVERS_TOOL,
    "contents.*.parts.*.toolCall": SERVERS_TOOL,
    "contents.*.parts.*.toolResponse": SERVERS_TOOL,
    "contents.*.parts.*.mediaResolution": AS_SENT,
    "contents.*.parts.*.mediaProcessing": AS_SENT,
    "contents.*.parts.*.videoMetadata": AS_SENT,
    "contents.*.parts.*.audioMetadata": AS_SENT,
    "contents.*.parts.*.audioTranscription": AS_SENT,
    "contents.*.parts.*.speechMetadata": AS_SENT,
    "contents.*.parts.*.documentMetadata": AS_SENT,
    "contents.*.parts.*.spreadsheetMetadata": AS_SENT,
    "contents.*.parts.*.partMetadata": Fate("ignored", "says nothing to a model"),
    "systemInstruction": CARRIED,
    "systemInstruction.role": Fate("emulated", "it is the system's, whatever it says"),
    "systemInstruction.parts": CARRIED,
    "tools": CARRIED,
    "tools.*.functionDeclarations": CARRIED,
    "tools.*.functionDeclarations.*.name": CARRIED,
    "tools.*.functionDeclarations.*.description": CARRIED,
    "tools.*.functionDeclarations.*.parameters": Fate("carried", "in the words of JSON Schema"),
    "tools.*.functionDeclarations.*.parametersJsonSchema": CARRIED,
    "tools.*.functionDeclarations.*.response": Fate("ignored", "chat templates have no place for a result's schema"),
    "tools.*.functionDeclarations.*.responseJsonSchema": Fate(
        "ignored", "chat templates have no place for a result's schema"
    ),
    "tools.*.functionDeclarations.*.behavior": NOT_STREAMED,
    "tools.*.googleSearch": SERVERS_TOOL,
    "tools.*.googleSearchRetrieval": SERVERS_TOOL,
    "tools.*.googleMaps": SERVERS_TOOL,
    "tools.*.codeExecution": SERVERS_TOOL,
    "tools.*.urlContext": SERVERS_TOOL,
    "tools.*.computerUse": SERVERS_TOOL,
    "tools.*.fileSearch": SERVERS_TOOL,
    "tools.*.retrieval": SERVERS_TOOL,
    "tools.*.enterpriseWebSearch": SERVERS_TOOL,
    "tools.*.parallelAiSearch": SERVERS_TOOL,
    "tools.*.exaAiSearch": SERVERS_TOOL,
    "tools.*.mcpServers": SERVERS_TOOL,
    "toolConfig": CARRIED,
    "toolConfig.functionCallingConfig": CARRIED,
    "toolConfig.functionCallingConfig.mode": Fate("carried", "VALIDATED counts as AUTO"),
    "toolConfig.functionCallingConfig.allowedFunctionNames": Fate("emulated", "the model is not given the others"),
    "toolConfig.functionCallingConfig.streamFunctionCallArguments": NOT_STREAMED,
    "toolConfig.retrievalConfig": SERVERS_TOOL,
    "toolConfig.includeServerSideToolInvocations": SERVERS_TOOL,
    "generationConfig": CARRIED,
    "generationConfig.temperature": CARRIED,
    "generationConfig.topP": CARRIED,
    "generationConfig.topK": CARRIED,
    "generationConfig.seed": SEED,
    "generationConfig.maxOutputTokens": CARRIED,
    "generationConfig.stopSequences": CARRIED,
    "generationConfig.presencePenalty": CARRIED,
    "generationConfig.frequencyPenalty": CARRIED,
    "generationConfig.candidateCount": Fate("emulated", "one candidate comes back; a larger count is noted"),
    "generationConfig.responseMimeType": Fate("emulated", "text and JSON; any other is noted"),
    "generationConfig.responseSchema": Fate("carried", "in the words of JSON Schema"),
    "generationConfig.responseJsonSchema": CARRIED,
    "generationConfig._responseJsonSchema": CARRIED,
    "generationConfig.responseFormat": TEXT_ONLY,
    "generationConfig.thinkingConfig": TEMPLATE,
    "generationConfig.thinkingConfig.thinkingBudget": BUDGET,
    "generationConfig.thinkingConfig.thinkingLevel": TEMPLATE,
    "generationConfig.thinkingConfig.includeThoughts": Fate(
        "emulated", "thoughts are always shown, so that they can come back as they were sampled"
    ),
    "generationConfig.responseLogprobs": ON_THE_RECORD,
    "generationConfig.logprobs": ON_THE_RECORD,
    "generationConfig.responseModalities": TEXT_ONLY,
    "generationConfig.speechConfig": TEXT_ONLY,
    "generationConfig.imageConfig": TEXT_ONLY,
    "generationConfig.translationConfig": TEXT_ONLY,
    "generationConfig.enableAffectiveDialog": TEXT_ONLY,
    "generationConfig.mediaResolution": AS_SENT,
    "generationConfig.audioTimestamp": AS_SENT,
    "generationConfig.audioTranscriptionConfig": AS_SENT,
    "generationConfig.enableEnhancedCivicAnswers": NOT_MODERATED,
    "generationConfig.routingConfig": ON_THIS_MACHINE,
    "generationConfig.modelConfig": ON_THIS_MACHINE,
    "safetySettings": NOT_MODERATED,
    "modelArmorConfig": NOT_MODERATED,
    "labels": Fate("ignored", "nothing is billed here"),
    "cachedContent": Fate("refused", "cached content is not served; send the contents in full"),
    "continuationToken": Fate("refused", "an answer is never continued; send the contents in full"),
    "store": ON_THIS_MACHINE,
    "serviceTier": ON_THIS_MACHINE,
    "outputConfig": ON_THIS_MACHINE,
    "sessionId": SESSION,
    "request": CARRIED,
    "project": Fate("emulated", "it is the one that loadCodeAssist named"),
    "userPromptId": SESSION,
    "enabledCreditTypes": Fate("ignored", "nothing is billed here"),
}

# Values of ignored fields that ask for nothing beyond what happens anyway.
IDLE: Mapping[str, Sequence[object]] = {
    "toolConfig.functionCallingConfig.streamFunctionCallArguments": (False,),
    "toolConfig.includeServerSideToolInvocations": (False,),
    "contents.*.parts.*.functionCall.willContinue": (False,),
    "contents.*.parts.*.functionResponse.willContinue": (False,),
    "generationConfig.responseLogprobs": (False,),
    "generationConfig.responseModalities": ([], ["TEXT"]),
    "generationConfig.audioTimestamp": (False,),
    "generationConfig.enableAffectiveDialog": (False,),
    "generationConfig.enableEnhancedCivicAnswers": (False,),
    "safetySettings": ([],),
    "labels": ({},),
    "store": (False,),
}


def give_fates(fields: Fields, notes: Notes, under: str = "") -> None:
    """Notes what of this object is not carried; `under` is the table's name for it. Raises CallError."""
    settle(fields, FATES, IDLE, notes, under)
