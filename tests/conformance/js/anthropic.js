// Talks to the API at $BASE_URL with the key $API_KEY as the Anthropic SDK does, and prints the objects that it built.
import Anthropic from "@anthropic-ai/sdk";

const client = new Anthropic({ baseURL: process.env.BASE_URL, apiKey: process.env.API_KEY, maxRetries: 0 });
const input_schema = { type: "object", properties: { cmd: { type: "string" } }, required: ["cmd"] };
const tools = [{ name: "run", description: "Runs a command.", input_schema }];

async function messages() {
  const task = { model: "claude-9", max_tokens: 64, messages: [{ role: "user", content: "Say hello." }] };
  const plain = await client.messages.create(task);
  const events = [];
  const stream = client.messages.stream(task);
  for await (const event of stream) events.push(event.type);
  const streamed = await stream.finalMessage();
  const called = await client.messages.stream({ ...task, tools }).finalMessage();
  const call = called.content.find((block) => block.type === "tool_use");
  const result = { type: "tool_result", tool_use_id: call.id, content: "a.txt" };
  const history = [{ role: "assistant", content: called.content }, { role: "user", content: [result] }];
  const second = await client.messages.create({ ...task, tools, messages: [...task.messages, ...history] });
  const counted = await client.messages.countTokens({ model: task.model, messages: task.messages });
  return { plain, events, streamed, called, second, counted };
}

async function failed() {
  try {
    await client.messages.create({ model: "claude-9", max_tokens: 64, messages: [{ role: "nobody", content: "x" }] });
  } catch (error) {
    return { name: error.constructor.name, status: error.status, type: error.error.error.type };
  }
}

console.log(JSON.stringify({ messages: await messages(), failed: await failed() }));
