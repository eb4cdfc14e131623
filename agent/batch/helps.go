package batch

import (
	"time"

	"lightmetrics.dev/lightmetrics/agent/input"
	"lightmetrics.dev/lightmetrics/pkg/frame"
	"lightmetrics.dev/lightmetrics/pkg/series"
)

// Help texts cost bytes and hardly ever change, so a metric's is sent once in an hour of the
// clock: the frames of any hour have it, and whoever reads an hour of them knows it.
const (
	helpInterval = time.Hour
	// maxHelpBytes of texts and names in a frame; what has no room goes into the next ones.
	maxHelpBytes = 32 << 10
	// maxHelpNames are remembered; of more metrics at once, some have no help.
	maxHelpNames = 20_000
)

// helps decides which frames carry which helps. Of several texts for one name, as targets in
// several languages have them, the first of the hour is sent: to follow each change would send
// them in every frame.
type helps struct {
	// sent has the hour in which a name's help was last queued.
	sent map[string]int64
	// pending are the names whose help the unfinished frame has; hour is the one in which
	// it began, 0 before.
	pending []string
	hour    int64
	bytes   int
	swept   int64 // hour in which sent was last searched for names that are gone
}

func newHelps() *helps { return &helps{sent: map[string]int64{}} }

// add gives b, which has the series, the help of its metric where that is due.
func (h *helps) add(b *frame.Builder, s *input.Series) {
	if s.Help == "" || h.bytes >= maxHelpBytes {
		return
	}
	if h.hour == 0 {
		h.hour = time.Now().UnixNano() / int64(helpInterval)
	}
	name := nameOf(s)
	if at, ok := h.sent[name]; ok && at == h.hour || !ok && !h.hasRoom() {
		return
	}
	if b.SetHelp(name, s.Help) != nil {
		return // the input's fault; its samples are worth more
	}
	// Not sent a second time in this frame. A frame that is not queued takes it back.
	h.sent[name] = h.hour
	h.pending = append(h.pending, name)
	h.bytes += len(name) + len(s.Help)
}

// hasRoom reports whether another name can be remembered. Names that the last hour did not
// have make room.
func (h *helps) hasRoom() bool {
	if len(h.sent) < maxHelpNames {
		return true
	}
	if h.swept == h.hour {
		return false
	}
	h.swept = h.hour
	for name, at := range h.sent {
		if at < h.hour-1 || at > h.hour {
			delete(h.sent, name)
		}
	}
	return len(h.sent) < maxHelpNames
}

// endFrame begins another frame; queued says whether the one before is in the queue.
func (h *helps) endFrame(queued bool) {
	if !queued {
		for _, name := range h.pending {
			delete(h.sent, name)
		}
	}
	clear(h.pending)
	h.pending, h.bytes, h.hour = h.pending[:0], 0, 0
}

func nameOf(s *input.Series) string {
	for _, l := range s.Labels {
		if l.Name == series.MetricName {
			return l.Value
		}
	}
	return ""
}
