// Talks to the API at $BASE_URL with the key $API_KEY as the openai SDK does, and prints the objects that it built.
import OpenAI from "openai";

const client = new OpenAI({ baseURL: `${process.env.BASE_URL}/v1`, apiKey: process.env.API_KEY, maxRetries: 0 });
const parameters = { type: "object", properties: { cmd: { type: "string" } }, required: ["cmd"] };
const tool = { name: "run", description: "Runs a command.", parameters };

async function chat() {
  const task = { model: "gpt-9", messages: [{ role: "user", content: "Say hello." }] };
  const plain = await client.chat.completions.create(task);
  const events = [];
  const stream = client.chat.completions.stream({ ...task, stream_options: { include_usage: true } });
  for await (const chunk of stream) events.push(chunk.choices[0]?.delta ?? "usage");
  const streamed = await stream.finalChatCompletion();
  const withTool = { ...task, tools: [{ type: "function", function: tool }] };
  const called = await client.chat.completions.stream(withTool).finalChatCompletion();
  const answer = called.choices[0].message;
  const result = { role: "tool", tool_call_id: answer.tool_calls[0].id, content: "a.txt" };
  const second = await client.chat.completions.create({ ...withTool, messages: [...task.messages, answer, result] });
  return { plain, events, streamed, called, second };
}

async function responses() {
  const task = { model: "gpt-9", input: [{ role: "user", content: "Say hello." }] };
  const plain = await client.responses.create(task);
  const events = [];
  const stream = client.responses.stream(task);
  for await (const event of stream) events.push(event.type);
  const streamed = await stream.finalResponse();
  const withTool = { ...task, tools: [{ type: "function", ...tool, strict: false }] };
  const called = await client.responses.stream(withTool).finalResponse();
  const call = called.output.find((item) => item.type === "function_call");
  const result = { type: "function_call_output", call_id: call.call_id, output: "a.txt" };
  const second = await client.responses.create({ ...withTool, input: [...task.input, ...called.output, result] });
  return { plain, events, streamed, called, second };
}

async function failed() {
  try {
    await client.chat.completions.create({ model: "gpt-9", messages: [{ role: "nobody", content: "x" }] });
  } catch (error) {
    return { name: error.constructor.name, status: error.status, type: error.type, param: error.param };
  }
}

console.log(JSON.stringify({ chat: await chat(), responses: await responses(), failed: await failed() }));
