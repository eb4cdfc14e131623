package rollup

import "testing"

func TestLogsParse(t *testing.T) {
	if h, err := ParseLog(7, Log(7, testHour)); err != nil || h != testHour {
		t.Errorf("%v %v", h, err)
	}
	for _, bad := range []string{"", "rollup/0007", "rollup/0008/2026-11-21T13", "rollup/0007/2026-11-21T13/x", "rollup/0007/2026-11-21X13"} {
		if _, err := ParseLog(7, bad); err == nil {
			t.Errorf("%q is taken", bad)
		}
	}
	if Topic(7) != "rollup-0007" || string(Message(testHour)) != "2026-11-21T13" {
		t.Error(Topic(7), string(Message(testHour)))
	}
}
