package peers

import (
	"testing"

	"lightmetrics.dev/lightmetrics/internal/acceptance/events/sqs/sqstest"
)

// StartQueues serves SQS until the test ends and gives its URL: moto where it is installed, otherwise the server of this
// project's own tests.
func StartQueues(t testing.TB) string {
	t.Helper()
	if hasMoto() == nil {
		return StartMoto(t)
	}
	return sqstest.Start(t).URL
}
