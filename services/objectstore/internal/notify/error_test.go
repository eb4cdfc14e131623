package notify

import (
	"net/http/httptest"
	"strings"
	"testing"
)

// The error of a webhook that does not answer, which is logged, leaves out its address: a token may be in it.
func TestErrorsLeaveOutTheAddress(t *testing.T) {
	gone := httptest.NewServer(nil)
	gone.Close()
	for _, of := range []string{gone.URL + "/hook?token=secret", "http://secret host/", "http://user:secret@[/"} {
		s := Sender{Options: Options{Hook: Hook{URL: of}, Client: Client(TLS{})}}
		if err := s.post(t.Context(), nil); err == nil || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: %v", of, err)
		}
	}
}
