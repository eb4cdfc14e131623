package batch

import (
	"time"

	"lightmetrics.dev/lightmetrics/agent/input"
	"lightmetrics.dev/lightmetrics/pkg/frame"
	"lightmetrics.dev/lightmetrics/pkg/series"
)

// Help texts cost bytes and hardly ever change, so a metric's text is sent once in each hour of
// the clock. Whoever reads the frames of an hour then has every text.
const (
	helpInterval = time.Hour
	// maxHelpBytes bounds the texts and names in a frame; the rest goes into the next frames.
	maxHelpBytes = 32 << 10
	// maxHelpNames bounds the names that are remembered; of more metrics some have no help text.
	maxHelpNames = 20_000
)

// helps decides which frames carry which help texts. When targets have different texts for one
// name, the first one of the hour is sent: sending each change would put texts into every frame.
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
		return // a text that frames do not take must not cost the samples
	}
	// Entered now, so that the text is not added to this frame twice. endFrame removes it again
	// if the frame is not queued.
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

// endFrame ends a frame; queued says whether it is in the queue. Texts of a frame that is not are
// due again.
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
