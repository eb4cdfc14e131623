package events

import (
	"io"
	"net/http"

	"lightmetrics.dev/lightmetrics/internal/platform/web"
)

// Source of what a webhook brings, in metrics.
const fromWebhook = "webhook"

// Route is the webhook, for callers with the role of services that send hints.
func (r *Receiver) Route() web.Route {
	return web.Route{Pattern: "POST /v1/events", About: "webhook for events of the object store", Roles: []web.Role{web.RoleWorker},
		MaxBody: MaxMessage, Handler: http.HandlerFunc(r.webhook)}
}

// webhook answers 200 once what it was sent is given on. What is no event is refused: a sender that tries it again for ever is
// seen, and one that was configured for something else is not told that all is well.
func (r *Receiver) webhook(w http.ResponseWriter, req *http.Request) {
	body, err := io.ReadAll(req.Body) // bounded by the route
	if err != nil {
		web.WriteError(w, http.StatusBadRequest, "body_truncated", err.Error(), nil)
		return
	}
	c, err := r.Take(fromWebhook, body)
	if err != nil {
		web.WriteError(w, http.StatusBadRequest, "unknown_message", err.Error(), nil)
		return
	}
	web.WriteJSON(w, http.StatusOK, c)
}
