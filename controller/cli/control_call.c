/* SPDX-License-Identifier: Apache-2.0 */
#include "common/contact.h"
#include "controller/cli/control.h"

json_t *hspmd_control_call(const json_t *contact, json_t *hello, double greet_s, double answer_s, struct hspmd_error *err)
{
	json_t *reply = NULL;
	struct hspmd_stream *s = hspmd_contact_connect(contact, hello, greet_s, NULL, err);
	int rc = s ? hspmd_stream_receive(s, answer_s, &reply, err) : -1;
	if (rc == 0)
		hspmd_fail(err, "the controller closed the connection without an answer: is the job ending?");
	hspmd_stream_destroy(s);
	return rc > 0 ? reply : NULL;
}
