package agent

import (
	"os"
	"strings"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/agent/send"
)

func ids(alerts []Alert) string {
	var out []string
	for _, a := range alerts {
		out = append(out, a.ID)
	}
	return strings.Join(out, " ")
}

func TestAlertsOfTheSender(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	ago := func(d time.Duration) *time.Time { at := now.Add(-d); return &at }
	denied := send.CollectorStatus{Address: "c1:1", State: send.Failing, Fault: send.FaultForbidden}
	plain := send.CollectorStatus{Address: "c2:1", State: send.Failing, Fault: send.FaultServerIsTLS}
	also := send.CollectorStatus{Address: "c3:1", State: send.Failing, Fault: send.FaultForbidden}
	for name, c := range map[string]struct {
		status send.Status
		want   string
	}{
		"connected":                       {send.Status{}, ""},
		"just disconnected":               {send.Status{DisconnectedSince: ago(59 * time.Second)}, ""},
		"a minute":                        {send.Status{DisconnectedSince: ago(time.Minute)}, "NO_COLLECTOR"},
		"a fault at once":                 {send.Status{DisconnectedSince: ago(0), Collectors: []send.CollectorStatus{denied}}, "PERMISSION_DENIED"},
		"one alert for each fault":        {send.Status{DisconnectedSince: ago(0), Collectors: []send.CollectorStatus{denied, plain, also}}, "PERMISSION_DENIED PLAINTEXT_TO_TLS"},
		"both":                            {send.Status{DisconnectedSince: ago(time.Hour), Collectors: []send.CollectorStatus{plain}}, "PLAINTEXT_TO_TLS NO_COLLECTOR"},
		"another takes the batches":       {send.Status{Collectors: []send.CollectorStatus{denied, {Address: "c2:1", State: send.Connected}}}, ""},
		"on the fallback":                 {send.Status{List: send.Fallback, ListSince: now.Add(-time.Hour + 1)}, ""},
		"on the fallback for long":        {send.Status{List: send.Fallback, ListSince: now.Add(-time.Hour)}, "ON_FALLBACK"},
		"on the preferred ones for long":  {send.Status{List: send.Preferred, ListSince: now.Add(-time.Hour)}, ""},
		"a clock that is a little off":    {send.Status{ClockOffsetSeconds: -9}, ""},
		"a clock that is behind":          {send.Status{ClockOffsetSeconds: 11}, "CLOCK_OFFSET"},
		"a clock that is ahead of others": {send.Status{ClockOffsetSeconds: -11}, "CLOCK_OFFSET"},
	} {
		if got := ids(senderAlerts(c.status, now)); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
	a := senderAlerts(send.Status{DisconnectedSince: ago(0), Collectors: []send.CollectorStatus{denied, also}}, now)[0]
	if !strings.Contains(a.Message, "c1:1, c3:1") || !strings.Contains(a.Action, "agent_id") {
		t.Errorf("%+v", a)
	}
	if a := senderAlerts(send.Status{ClockOffsetSeconds: -11}, now)[0]; !strings.Contains(a.Message, "11 s ahead of") {
		t.Errorf("%+v", a)
	}
}

// TestEveryAlertIsExplained: each has a sentence of what to do, and a row of the guide.
func TestEveryAlertIsExplained(t *testing.T) {
	guide, err := os.ReadFile("../docs/guide/agent.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, id := range alertIDs() {
		if !strings.Contains(string(guide), "| `"+id+"` |") {
			t.Errorf("the guide has no row for %s", id)
		}
	}
	for _, f := range send.Faults() {
		if text := faultAlerts[f]; text[0] == "" || !strings.HasSuffix(text[1], ".") {
			t.Errorf("%s has no message or action: %q", f, text)
		}
	}
}
