package send

import "lightmetrics.dev/lightmetrics/internal/platform/failpoint"

// Failpoints of the sender; docs/protocol/failpoints.md lists them all.
var _ = failpoint.Register(append(failpoint.Driven("agent/send",
	failpoint.Point{Name: "agent.send.settle.decided", When: "decisions about parked batches were read; nothing was done with them"},
	failpoint.Point{Name: "agent.send.settle.queued", When: "the records of a parked batch are queued under new numbers; the collector is not told"},
	failpoint.Point{Name: "agent.send.settle.told", When: "the collector has recorded what was done about a parked batch; it is still there"},
	failpoint.Point{Name: "agent.send.settle.removed", When: "a settled batch is removed"},
),
	failpoint.Point{Name: "agent.send.hello.before", When: "a stream is open; the hello is not sent"},
	failpoint.Point{Name: "agent.send.welcome.received", When: "a welcome was read; nothing was done with it"},
	failpoint.Point{Name: "agent.send.launch.before", When: "a frame was read from the queue; it does not count as in flight"},
	failpoint.Point{Name: "agent.send.frame.before", When: "a frame is in flight and not sent"},
	failpoint.Point{Name: "agent.send.frame.after", When: "a frame was handed to the stream; there is no answer"},
	failpoint.Point{Name: "agent.send.answer.received", When: "an answer was read; nothing was done with it"},
	failpoint.Point{Name: "agent.send.ack.before", When: "a batch is accepted; it is still pending in the queue"},
	failpoint.Point{Name: "agent.send.ack.after", When: "a batch is accepted and its entry finished"},
	failpoint.Point{Name: "agent.send.park.before", When: "a conflict was answered; the batch is still pending"},
)...)
